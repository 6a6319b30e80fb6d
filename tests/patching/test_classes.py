"""`install` and classes of unusual make; sessions in use while it comes and goes."""

from __future__ import annotations

from tests.patching.conftest import Program


def test_metaclasses_slots_and_mixins(program: Program) -> None:
    program("""
        import abc, requests, netkit
        class Meta(type):
            made = []
            def __init__(cls, name, bases, names):
                super().__init__(name, bases, names)
                Meta.made.append(name)
        class WithMeta(requests.Session, metaclass=Meta):
            pass
        class Slotted(requests.Session):
            __slots__ = ("mine",)
        class Abstract(requests.Session, abc.ABC):
            @abc.abstractmethod
            def work(self): ...
        class Concrete(Abstract):
            def work(self):
                return self.post(EMBED, json=BODY)
        class Mixin:
            def send(self, request, **options):
                request.headers["X-Mixed"] = "1"
                return super().send(request, **options)
        class Mixed(Mixin, requests.Session):
            pass
        class Sibling(requests.Session):
            def send(self, request, **options):
                return super().send(request, **options)
        class Diamond(Mixed, Sibling):
            pass
        kinds = [WithMeta, Slotted, Concrete, Mixed, Sibling, Diamond]
        orders = [kind.__mro__ for kind in kinds]
        netkit.install()
        class Late(Diamond):
            pass
        for kind in [*kinds, Late]:
            assert issubclass(kind, netkit.Session), kind
            with kind() as session:
                session.verify = CA
                answer = session.post(EMBED, json=BODY)
                assert answer.raw.version == 20, kind
                assert netkit.stats(session).requests.total == 1, kind
                assert ("X-Mixed" in answer.request.headers) == isinstance(session, Mixin)
        assert Meta.made == ["WithMeta"], "no class is made anew"
        netkit.uninstall()
        assert [kind.__mro__ for kind in kinds] == orders
        with WithMeta() as session:
            session.verify = CA
            assert session.post(EMBED, json=BODY).raw.version == 11
    """)


def test_threads_use_sessions_while_it_comes_and_goes(program: Program) -> None:
    program("""
        import threading, requests, netkit
        session = requests.Session()
        session.verify = CA
        session.mount("https://", requests.adapters.HTTPAdapter(pool_maxsize=8))
        stop, started, failures, answered = threading.Event(), threading.Barrier(9), [], []
        def work():
            started.wait()
            while not stop.is_set():
                try:
                    assert session.post(EMBED, json=BODY).status_code == 200
                    with requests.Session() as own:
                        own.verify = CA
                        assert own.post(EMBED, json=BODY).status_code == 200
                    answered.append(1)
                except BaseException as error:
                    failures.append(error)
                    return
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        started.wait()
        for _ in range(20):
            before = len(answered)
            netkit.install()
            while len(answered) < before + 4 and not failures:
                stop.wait(0.001)
            netkit.uninstall()
        stop.set()
        for thread in threads:
            thread.join()
        assert not failures, failures[0]
        assert type(session) is requests.Session is not netkit.Session
        session.close()
    """)


def test_uninstall_holds_nothing_of_a_live_session(program: Program) -> None:
    program("""
        import gc, weakref, requests, netkit
        from netkit.facade import edge_of
        session = requests.Session()
        session.verify = CA
        for _ in range(2):
            netkit.install()
            assert session.post(EMBED, json=BODY).raw.version == 20
            edge = weakref.ref(edge_of(session))
            netkit.uninstall()
            gc.collect()
            assert edge() is None
            assert session.post(EMBED, json=BODY).raw.version == 11
        session.close()
    """)
